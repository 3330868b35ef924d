package cardjobs

import (
	"os"
	"testing"

	"spendhook/internal/pgtest"
	"spendhook/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childURL) != "" {
		runChild()
	}
	redistest.Main(pgtest.Stopping(m))
}
