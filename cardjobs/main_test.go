package cardjobs

import (
	"os"
	"testing"

	"spendhook/internal/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childURL) != "" {
		runChild()
	}
	pgtest.Main(m)
}
