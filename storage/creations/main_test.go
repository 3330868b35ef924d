package creations_test

import (
	"testing"

	"spendhook/internal/pgtest"
	"spendhook/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	now  = storagetest.Now
	acme = storagetest.Acme
	bo   = storagetest.Bo
)
