# make demo   see it work; installs bubblewrap if it is missing, and gets the Python
#             packages of scripts when an index answers
# make test   every test, including those in the real sandbox
# make soak   the same with full kill, fuzz and scale counts (an hour or so)
# make lint   formatting, vet, staticcheck
# make bench  docs/benchmarks.md, measured anew; with ONLY='Start|Front' some rows of it

export CGO_ENABLED = 0
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1.0-dev)
BIN := bin/mcp-vdisk

.PHONY: demo build test soak lint bench need need-tests

build:
	@mkdir -p bin
	go build -trimpath -ldflags '-s -w -X github.com/mcp-vdisk/mcp-vdisk/cmd/mcp-vdisk/front.Version=$(VERSION)' -o $(BIN) ./cmd/mcp-vdisk

demo: need build
	@$(BIN) demo --packages

need:
	@.ci/need

need-tests:
	@.ci/need tests

test: need-tests build
	@.ci/test

soak: need-tests build
	@MCP_VDISK_SOAK=1 .ci/test

lint:
	@.ci/lint

bench: need build
	@.ci/bench
