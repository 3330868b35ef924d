//go:build !dashboards

// Dashboards writes the Grafana dashboards. Its libraries are in monitoring.mod, so that
// the daemon does without them: make generate builds it with the tag dashboards.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "run make generate")
	os.Exit(2)
}
