package redisx

import "testing"

func TestDefaultMemoryIsKnown(t *testing.T) {
	t.Parallel()
	if n := defaultMemory(); n < minMemory {
		t.Errorf("%d bytes", n)
	}
}
