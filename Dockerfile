# One small image with all binaries: the three services, the payment provider, and `demo`, which sets up the database and
# calls the admin APIs inside the containers.

FROM rust:1-slim-trixie AS build
WORKDIR /src
COPY . .
# The registry and the target directory are build caches, so that a changed line rebuilds one crate and not four
# hundred. Only the binaries leave this step: a cache is not part of any layer.
RUN --mount=type=cache,id=shop-cargo,target=/usr/local/cargo/registry \
    --mount=type=cache,id=shop-target,target=/src/target \
    cargo build --release --locked -p orders -p inventory -p billing -p payment-provider -p demo \
    && mkdir /out \
    && for name in orders inventory billing payment-provider demo; do cp target/release/$name /out/; done \
    && strip /out/*

FROM debian:trixie-slim
COPY --from=build /out/ /usr/local/bin/
# A number, so that "not root" can be checked without reading the image's user table.
USER 65532:65532
