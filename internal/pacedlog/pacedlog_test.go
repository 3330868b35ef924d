package pacedlog

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestProblemsAreSummedUp(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	now := time.Unix(1_000_000, 0)
	p := New(slog.New(slog.NewTextHandler(&out, nil)), "go-redis", func() time.Time { return now })
	for range 300 {
		p.Log(t.Context(), "no route")
		p.Debug(t.Context(), "quiet")
		now = now.Add(300 * time.Millisecond) // 90 s in all
	}
	got := out.String()
	if n := strings.Count(got, "\n"); n != 2 || !strings.Contains(got, "library=go-redis") || !strings.Contains(got, "left_out=199") {
		t.Errorf("%d lines:\n%s", n, got)
	}
}
