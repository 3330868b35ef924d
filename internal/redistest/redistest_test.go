package redistest_test

import (
	"strconv"
	"testing"

	"spendhook/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	for i := range 20 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			c := redistest.New(t)
			if got := c.Incr(t.Context(), "n").Val(); got != 1 {
				t.Errorf("first INCR in a fresh database = %d, want 1", got)
			}
		})
	}
}
