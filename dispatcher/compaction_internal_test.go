package dispatcher

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A partition that always has more to compact is visited often, and the others as often as without it.
func TestABusyPartitionDoesNotDelayTheCompactionOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 55*time.Second)
		defer cancel()
		visits := map[int]int{}
		compactInPasses(ctx, 10*time.Second, func() []int { return []int{1, 2} }, func(_ context.Context, partitions []int) []int {
			for _, p := range partitions {
				visits[p]++
			}
			return slices.DeleteFunc(slices.Clone(partitions), func(p int) bool { return p != 1 })
		})
		if visits[1] < 200 || visits[2] != 6 {
			t.Errorf("visits in 55 s: %v", visits)
		}
	})
}
