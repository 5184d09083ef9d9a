# syntax=docker/dockerfile:1

# Both services of Witness in one image: `witness ingress`, `witness projector`, and every other command.
# The runtime has the binary, its health check and the certificate authorities; it runs as a user with a number
# and no name, and needs no writable path but the projector's store.

FROM rust:1-bookworm AS builder
# The base image has all that librdkafka and OpenSSL are built with: a C and C++ compiler, make and perl.
WORKDIR /build
COPY . .
# The caches keep the crates and what was compiled from them between builds, so that a change of our own code
# compiles our own code alone. They are not part of any layer: what is needed is copied out of them.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,id=witness-target,sharing=locked,target=/build/target \
    cargo build --release --locked --package witness \
    && strip -o /witness target/release/witness

FROM debian:bookworm-slim
# For brokers, registries and secret stores behind TLS.
COPY --from=builder /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=builder /witness /usr/local/bin/witness
COPY --chmod=0755 deploy/witness-health /usr/local/bin/witness-health
# A named volume takes this folder's owner when it is first mounted here.
RUN install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/witness
WORKDIR /var/lib/witness
USER 10001:10001
ENTRYPOINT ["witness"]
CMD ["--help"]
