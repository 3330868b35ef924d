package workqueue_test

import (
	"flag"
	"testing"

	"spendhook/internal/redistest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "25") // by default; each check starts some ten processes
	redistest.Main(m)
}
