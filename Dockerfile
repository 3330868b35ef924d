# syntax=docker/dockerfile:1

# The root file system of 'make image': the binary, CA certificates, time zones and a user.
# There is no shell, and no redis-server: set SPENDHOOK_REDIS, e.g. to redis://redis:6379/0.
# See docs/install.md.

FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
COPY . .
ARG TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    make rootfs ARCH=$TARGETARCH

FROM scratch
COPY --from=build /src/bin/rootfs/ /
COPY --from=build --chown=65532:65532 /src/bin/rootfs/data /data
ENV PATH=/usr/bin \
    SPENDHOOK_DATA_DIR=/data \
    SPENDHOOK_LISTEN=:8443
WORKDIR /data
VOLUME /data
EXPOSE 8443
USER 65532:65532
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["/usr/bin/spendhook", "healthcheck"]
ENTRYPOINT ["/usr/bin/spendhook"]
CMD ["serve"]
