package pacedlog

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneProblemAMinuteIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := OfLibrary(slog.New(slog.NewTextHandler(&out, nil)), "go-redis")
		for range 300 {
			p.Log(t.Context(), "message", "no route")
			<-time.After(300 * time.Millisecond) // 90 s in all
		}
		got := out.String()
		if n := strings.Count(got, "\n"); n != 2 || !strings.Contains(got, "library=go-redis") {
			t.Errorf("%d lines:\n%s", n, got)
		}
	})
}
