# syntax=docker/dockerfile:1

# The image holds the daemon alone, without a Redis to embed: give it one by
# SPENDHOOK_REDIS, e.g. redis://redis:6379/0. The API is served on :8080, which
# the daemon refuses until it has certificates (SPENDHOOK_TLS_CERT_FILE,
# SPENDHOOK_TLS_KEY_FILE, SPENDHOOK_TLS_CLIENT_CA_FILE) or knows the proxies that
# end TLS in front of it (SPENDHOOK_TLS_TRUSTED_PROXIES=10.0.0.0/8). The admin listener (9090) stays on the
# container's own loopback unless SPENDHOOK_ADMIN_LISTEN and
# SPENDHOOK_ADMIN_PUBLIC open it. /data keeps the token key: make it a volume.

FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG VERSION=dev
ARG TARGETOS
ARG TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" \
    -o /out/spendhook ./cmd/spendhook && mkdir -m 0700 /out/data

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/spendhook /spendhook
COPY --from=build --chown=nonroot:nonroot /out/data /data
ENV SPENDHOOK_DATA_DIR=/data \
    SPENDHOOK_LISTEN=:8080
VOLUME /data
EXPOSE 8080
USER nonroot:nonroot
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["/spendhook", "healthcheck"]
ENTRYPOINT ["/spendhook"]
CMD ["serve"]
