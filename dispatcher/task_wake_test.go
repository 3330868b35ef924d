package dispatcher

import (
	"context"
	"log/slog"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
)

// evals is how many scripts by hash the server has run.
func evals(t *testing.T, client redis.UniversalClient) int {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`).FindStringSubmatch(info)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEmptyQueueIsLookedAtSeldomAndTasksAreTakenAtOnce(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t, redistest.Options{}).Client()
	took := make(chan string, 1)
	q := NewQueue(QueueOptions{Client: client, Logger: slog.New(slog.DiscardHandler)})
	handle := func(_ context.Context, _, _, payload string) { took <- payload }
	if err := q.start(handle); err != nil {
		t.Fatal(err)
	}
	defer q.stop()
	other := NewQueue(QueueOptions{Client: client, Logger: slog.New(slog.DiscardHandler)})
	for _, from := range []*Queue{q, other} { // of this process, and of another replica
		began, before := time.Now(), evals(t, client)
		idle := time.NewTimer(time.Second)
		<-idle.C
		n := evals(t, client) - before
		if took := time.Since(began); float64(n) > 20*took.Seconds() {
			t.Errorf("%d looks at an empty queue in %v", n, took)
		}
		began = time.Now()
		if err := from.enqueue(t.Context(), 0, taskDispatch, "payload"); err != nil {
			t.Fatal(err)
		}
		if got := <-took; got != "payload" {
			t.Errorf("took %q", got)
		}
		if d := time.Since(began); d > 10*longestNap {
			t.Errorf("taken after %s", d)
		}
	}
}
