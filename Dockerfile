# An image for each service, and one for `demo`, from one build. A service's image has its program and the C library that
# this needs, and nothing else: no shell, no package manager, no tool of the lab. `<service> healthcheck` and
# `<service> get PATH` are for what needs an HTTP client inside its container.
#
#   docker build --target orders .      # or inventory, billing, payment-provider, lab, tour; demo without a target

FROM rust:1-slim-trixie AS build
# `docker buildx build --sbom=true` lists what is in this stage too: the crates of Cargo.lock.
ARG BUILDKIT_SBOM_SCAN_STAGE=true
WORKDIR /src
COPY . .
# The registry and the target directory are build caches, so that a changed line rebuilds the crates of this workspace and
# not four hundred others. Only the binaries leave this step: a cache is not part of any layer. `touch`, because cargo
# compares times: a layer with the sources of an earlier commit is older than what a later one has left in the cache, and
# would be taken for built.
RUN --mount=type=cache,id=shop-cargo,target=/usr/local/cargo/registry \
    --mount=type=cache,id=shop-target,target=/src/target \
    find . -path ./target -prune -o -name '*.rs' -exec touch {} + \
    && cargo build --release --locked -p orders -p inventory -p billing -p payment-provider -p demo \
    && mkdir /out /demo \
    && for name in orders inventory billing payment-provider demo; do cp target/release/$name /out/; done \
    && strip /out/* \
    && mkdir /libraries && ldd /out/* | grep -o '/[^ :]*/l[di][^ ]*' | sort -u | xargs cp --parents -Lt /libraries

# The lab's programs: `compose.lab.yaml` uses them. A build of the product skips this step.
FROM build AS build-lab
RUN --mount=type=cache,id=shop-cargo,target=/usr/local/cargo/registry \
    --mount=type=cache,id=shop-target,target=/src/target \
    cargo build --release --locked -p flawed-services -p fault-proxy \
    && for name in orders-lab inventory-lab billing-lab orders-variant fault-proxy; do cp target/release/$name /out/; done \
    && strip /out/*

FROM debian:trixie-slim AS lab
COPY --from=build-lab /out/ /usr/local/bin/
COPY --from=build --chown=65532:65532 /demo/ /var/lib/demo/
USER 65532:65532

# The whole system and all drills in one container, PostgreSQL and RabbitMQ included, for a visitor who has Docker and nothing else:
# `docker run --rm outbox-shop-tour` is `cargo demo`, and its arguments are those of `cargo demo`.
FROM debian:trixie-slim AS tour
RUN apt-get update \
    && apt-get install -y --no-install-recommends postgresql rabbitmq-server libfaketime \
    && rm -rf /var/lib/apt/lists/* \
    # PostgreSQL does not run as root, and needs an account for its user.
    && useradd --uid 65532 --create-home demo
COPY --from=build-lab /out/ /usr/local/bin/
COPY --from=build --chown=65532:65532 /demo/ /var/lib/demo/
USER 65532:65532
WORKDIR /home/demo
ENV DEMO_HOME=/var/lib/demo DEMO_WITH=local
ENTRYPOINT ["demo", "--no-install"]

FROM scratch AS service
COPY --from=build /libraries/ /
# A number, so that "not root" can be checked without reading the image's user table.
USER 65532:65532

FROM service AS orders
COPY --from=build /out/orders /usr/local/bin/

FROM service AS inventory
COPY --from=build /out/inventory /usr/local/bin/

FROM service AS billing
COPY --from=build /out/billing /usr/local/bin/

FROM service AS payment-provider
COPY --from=build /out/payment-provider /usr/local/bin/

# The last one is what is built without a target. `demo` sets up the database, and is the proof without Rust.
FROM debian:trixie-slim AS demo
COPY --from=build /out/demo /usr/local/bin/
# `demo` keeps its notes here. A volume that is mounted here belongs to the same user.
COPY --from=build --chown=65532:65532 /demo/ /var/lib/demo/
USER 65532:65532
