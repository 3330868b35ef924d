package conformance_test

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"spendhook/clients/conformance"
)

// The library for Go does what the suite demands.
func TestGo(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "conformance")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../go/conformance").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	test(t, conformance.Options{Command: []string{program}})
}

func test(t *testing.T, o conformance.Options) {
	t.Helper()
	o.Now, o.Errors = time.Now, t.Output()
	err := conformance.Run(t.Context(), o, func(r conformance.Result) {
		t.Run(r.Name, func(t *testing.T) {
			t.Logf("%s", r.Took)
			if r.Skipped() {
				t.Skip(r.Err)
			}
			if r.Err != nil {
				t.Error(r.Err)
			}
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}
