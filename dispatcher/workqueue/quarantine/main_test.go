package quarantine_test

import (
	"testing"

	"spendhook/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }
