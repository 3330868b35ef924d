package requestmemory

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// claimed is a claim of a company.
func claimed(ctx context.Context, l *Limiter, company string, bytes int64, patience time.Duration) (*Claim, error) {
	c := l.Open(Bound{Holder: company})
	return c, c.Grow(ctx, bytes, patience)
}

func TestACompanyHoldsAtMostWhatIsLeftFree(t *testing.T) {
	t.Parallel()
	l := New(8, 8)
	a, err := claimed(t.Context(), l, "a", 4, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claimed(t.Context(), l, "a", 1, time.Millisecond); !errors.Is(err, ErrFull) {
		t.Errorf("a company took more than it left: %v", err)
	}
	b, err := claimed(t.Context(), l, "b", 4, time.Minute) // it has nothing yet
	if err != nil {
		t.Fatal(err)
	}
	next := make(chan *Claim)
	go func() {
		c, err := claimed(t.Context(), l, "c", 2, time.Minute)
		if err != nil {
			t.Error(err)
		}
		next <- c
	}()
	a.ShrinkTo(2) // a part is enough
	for _, c := range []*Claim{a, b, <-next} {
		c.ShrinkTo(1)
		c.ShrinkTo(0)
		c.ShrinkTo(0)
	}
	if l.used != 0 || len(l.held) != 0 || len(l.waiting) != 0 {
		t.Errorf("%d used, %v held, %d waiting", l.used, l.held, len(l.waiting))
	}
}

// A large claim does not overtake a larger one that waits for the total; a small one does. When the
// larger one gives up, the large one gets the bytes at once.
func TestLargeClaimsAreServedInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(80, 2)
		if _, err := claimed(t.Context(), l, "first", 40, time.Minute); err != nil {
			t.Fatal(err)
		}
		ended := make(chan string, 2)
		wait := func(ctx context.Context, company string, bytes int64) {
			go func() {
				if _, err := claimed(ctx, l, company, bytes, time.Minute); err != nil {
					company += " refused"
				}
				ended <- company
			}()
			synctest.Wait()
		}
		ctx, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		wait(ctx, "largest", 60)
		wait(t.Context(), "large", 10)
		if len(ended) > 0 {
			t.Fatal(<-ended, " overtook the largest claim")
		}
		if _, err := claimed(t.Context(), l, "small", 2, time.Minute); err != nil {
			t.Error(err)
		}
		giveUp()
		if both := []string{<-ended, <-ended}; !slices.Contains(both, "largest refused") || !slices.Contains(both, "large") {
			t.Errorf("the claims ended as %v", both)
		}
	})
}
