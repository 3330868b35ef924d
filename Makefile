# `make help` explains every target.

IMAGE   ?= spendhook
FUZZTIME ?= 10s
# The time limit of the tests of a package; a busy machine needs more than 15 minutes.
TIMEOUT ?= 15m
ARGS    ?=
ARCH    ?= amd64

GO      ?= go
TOOL    := $(GO) tool -modfile=tools.mod
# The race detector checks all code except SQLite: it makes this translated C code ten times
# slower.
RACE    := -race -gcflags='modernc.org/...=-race=false'
# Most tests mostly wait, so more tests run at once than there are cores.
PARALLEL = -parallel $(shell echo $$((3 * $$(getconf _NPROCESSORS_ONLN))))
# By default, each process under the race detector sleeps for a second before it exits.
export GORACE ?= atexit_sleep_ms=10
# Separate modules, so that the daemon does not depend on their libraries.
MODULES := deploy deploy/monitoring/dashboards examples/go
DASHBOARDS := -C deploy/monitoring/dashboards
LDFLAGS = -s -w $(shell scripts/version --ldflags)

RELEASE = $(shell scripts/version | sed 's/\(.*\) \(.*\) \(.*\)/--version \1 --revision \2 --date \3/')

.DEFAULT_GOAL := help

.PHONY: help
help: ## Explain every target
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: build ## Build and start a demo on loopback (more flags: make run ARGS="--listen 127.0.0.1:8081")
	@scripts/ensure --soft redis
	bin/spendhook serve --dev --demo $(ARGS)

.PHONY: build
build: ## Build bin/spendhook
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/spendhook ./cmd/spendhook

.PHONY: test
test: ## Run the tests with the race detector (installs redis-server, postgresql, rabbitmq-server, prometheus and chromium if they are missing)
	@scripts/ensure redis
	@scripts/ensure postgresql
	@scripts/ensure rabbitmq
	@scripts/ensure prometheus
	@scripts/ensure chromium
	@scripts/ensure openssl
	$(GO) test $(RACE) $(PARALLEL) -vet=off -timeout $(TIMEOUT) ./... # make lint vets
	$(GO) test $(DASHBOARDS) ./...

.PHONY: test-console
test-console: ## Run the long tests of the web console in a browser (build tag browser)
	@scripts/ensure redis
	@scripts/ensure chromium
	$(GO) test -tags browser -timeout 15m -run '^TestConsole' ./cmd/spendhook

.PHONY: screenshots
screenshots: ## Write the pages of the web console to docs/console/, light and dark
	@scripts/ensure redis
	@scripts/ensure chromium
	CONSOLE_SCREENSHOTS=$(CURDIR)/docs/console $(GO) test -tags browser -count=1 -timeout 5m -run '^TestConsoleScreenshots$$' ./cmd/spendhook

.PHONY: test-faults
test-faults: ## Run the long tests that kill, pause and flood (build tag faults)
	@scripts/ensure redis
	@scripts/ensure postgresql
	@scripts/ensure rabbitmq
	@files=$$(grep -rl --include='*_test.go' '^//go:build faults' .); \
		tests=$$(sed -n 's/^func \(Test[A-Za-z0-9_]*\)(.*/\1/p' $$files | paste -sd '|' -); \
		set -x; $(GO) test $(RACE) -vet=off -tags faults -p 1 -timeout 40m -run "^($$tests)$$" $$(dirname $$files | sort -u)

.PHONY: test-alerts
test-alerts: ## Cause each outage and check that exactly its alert fires and ends, ~5 min (build tag alerts)
	@scripts/ensure redis
	@scripts/ensure postgresql
	@scripts/ensure prometheus
	$(GO) test -tags alerts -parallel 4 -timeout 40m -v -run TestAlertsOfOutages ./cmd/spendhook

.PHONY: test-examples
test-examples: ## Test the receivers of examples/, the libraries of clients/, the login at a real provider, the OpenAPI documents, the shell blocks of the documents (needs node, python3, java, php, ruby; build tag examples)
	@scripts/ensure redis
	@scripts/ensure postgresql
	@scripts/ensure node
	@scripts/ensure python
	@scripts/ensure --soft python-libraries
	@scripts/ensure java
	@scripts/ensure php
	@scripts/ensure ruby
	@scripts/ensure --soft jdbc
	npm ci --no-audit --no-fund --prefix examples/node
	npm ci --no-audit --no-fund --prefix clients/typescript
	npm ci --no-audit --no-fund --prefix cmd/spendhook/testdata/oidc
	npm ci --no-audit --no-fund --prefix cmd/spendhook/testdata/openapi
	$(GO) vet -C examples/go ./...
	$(GO) test -tags examples -timeout 10m -run '^TestExample' ./cmd/spendhook ./clients/conformance

.PHONY: test-install
test-install: ## Build image, packages, chart and compose file, install each and start what it starts, ~4 min
	@scripts/ensure redis
	@scripts/ensure postgresql
	@scripts/ensure rpm
	$(GO) test -C deploy -timeout 20m ./...

.PHONY: bench
bench: build ## Measure against what the machine can do, ~2 h (flags: make bench ARGS="--scenarios one,batch")
	@scripts/ensure redis
	$(GO) run ./bench run --out bin/bench.json $(ARGS)

.PHONY: bench-smoke
bench-smoke: build ## Run the bench for two minutes, to check that every accepted event is delivered; no time limits
	@scripts/ensure redis
	$(GO) run ./bench smoke

.PHONY: bench-cost
bench-cost: build ## Measure for a minute what a delivery costs, beside the published figures; it judges nothing
	@scripts/ensure redis
	$(GO) run ./bench cost

.PHONY: lint
lint: ## Check style, formatting, the import graph, and that every exported name is used
	$(TOOL) golangci-lint run --allow-parallel-runners ./...
	@linter=$$($(TOOL) -n golangci-lint); for module in $(MODULES); do \
		echo "golangci-lint in $$module"; (cd $$module && $$linter run --allow-parallel-runners ./...) || exit 1; \
	done
	$(GO) run ./internal/tools/exports

.PHONY: vuln
vuln: ## Look for known vulnerabilities in what the binary calls (asks vuln.go.dev)
	GO='$(GO)' scripts/vuln

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (10s)
	scripts/fuzz $(FUZZTIME)

.PHONY: generate
generate: ## Rewrite what is generated: API types from the OpenAPI document, docs/errors.md, docs/metrics.md, dashboards
	@scripts/ensure redis
	$(GO) generate ./...
	GENERATE=1 $(GO) test -count=1 -run TestErrorsAreDocumented ./api
	GENERATE=1 $(GO) test -count=1 -run TestMetricsAreDocumented ./cmd/spendhook
	$(GO) run $(DASHBOARDS) . .

.PHONY: docker
docker: ## Build the container image with docker
	docker build -t $(IMAGE) .

.PHONY: image
image: binaries ## Build the container image for amd64 and arm64 without docker, as an OCI layout in bin/image
	$(GO) run -C deploy ./image layout $(RELEASE)

.PHONY: rootfs
rootfs: bin/linux-$(ARCH)/spendhook ## Write the root file system of the image to bin/rootfs, for ARCH (amd64)
	$(GO) run -C deploy ./image rootfs --arch $(ARCH) --out ../bin/rootfs $(RELEASE)

.PHONY: packages
packages: binaries build ## Build the Debian and RPM packages for amd64 and arm64, and their checksums, in bin/packages
	rm -rf bin/packages
	deploy/packages/generate bin/spendhook bin/packages $(word 3,$(shell scripts/version))
	@for arch in amd64 arm64; do for kind in deb rpm; do \
		(cd deploy/packages && ARCH=$$arch BIN=$(CURDIR)/bin VERSION=$(word 1,$(shell scripts/version)) SOURCE_DATE_EPOCH=$$(date -u -d $(word 3,$(shell scripts/version)) +%s) \
			$(GO) tool nfpm package --packager $$kind --target $(CURDIR)/bin/packages) || exit 1; \
	done; done
	cd bin/packages && sha256sum *.deb *.rpm >SHA256SUMS

.PHONY: binaries
binaries: bin/linux-amd64/spendhook bin/linux-arm64/spendhook

.PHONY: bin/linux-amd64/spendhook bin/linux-arm64/spendhook
bin/linux-amd64/spendhook bin/linux-arm64/spendhook: bin/linux-%/spendhook:
	CGO_ENABLED=0 GOOS=linux GOARCH=$* $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $@ ./cmd/spendhook

.PHONY: release
release: ## Build image and packages, unless a figure of docs/benchmarks.md is older than the core
	$(GO) run ./bench publish --check
	$(MAKE) image packages

.PHONY: cross
cross: ## Compile for the systems that the tests do not run on: macOS and Windows
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/spendhook
	GOOS=windows GOARCH=amd64 CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/spendhook

.PHONY: tidy
tidy: ## Tidy go.mod and format the code
	$(GO) mod tidy
	$(TOOL) golangci-lint fmt ./...
