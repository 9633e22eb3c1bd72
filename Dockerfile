# One small image with all binaries: the three services, the payment provider's stand-in, and `demo`, which sets up the database and checks health from within.

FROM rust:1-slim-trixie AS build
WORKDIR /src
COPY . .
# The registry and the target directory live in build caches, so that a changed line rebuilds one crate and not four
# hundred. What leaves this step are the binaries alone: a cache is not part of any layer.
RUN --mount=type=cache,id=shop-cargo,target=/usr/local/cargo/registry \
    --mount=type=cache,id=shop-target,target=/src/target \
    cargo build --release --locked -p orders -p inventory -p billing -p provider -p demo \
    && mkdir /out \
    && for name in orders inventory billing provider demo; do cp target/release/$name /out/; done \
    && strip /out/*

FROM debian:trixie-slim
COPY --from=build /out/ /usr/local/bin/
# A number, so that "not root" can be checked without looking into the image's user table.
USER 65532:65532
