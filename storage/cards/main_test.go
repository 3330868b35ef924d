package cards_test

import (
	"testing"

	"spendhook/internal/pgtest"
	"spendhook/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	now          = storagetest.Now
	acme, bolt   = storagetest.Acme, storagetest.Bolt
	ann, ivo, bo = storagetest.Ann, storagetest.Ivo, storagetest.Bo
)
