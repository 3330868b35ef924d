package rabbitmq

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"spendhook/relay"
)

// Whatever is settled in whatever order, exactly the settled messages are acknowledged.
func TestExactlyWhatIsSettledIsAcknowledged(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ss := &session{source: &Source{}, budget: newBudget(1), unsettled: map[uint64]amqp.Delivery{}}
		open := map[uint64]bool{} // as the broker sees it
		next := uint64(1)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			for range rapid.IntRange(0, 5).Draw(t, "delivered") {
				ss.add(context.Background(), &amqp.Delivery{DeliveryTag: next, Body: []byte("body")})
				open[next] = true
				next++
			}
			var settled []uint64
			var outcomes []relay.Outcome
			for _, tag := range slices.Sorted(maps.Keys(open)) {
				if rapid.Bool().Draw(t, "settled") {
					settled = append(settled, tag)
					outcomes = append(outcomes, relay.Outcome{Record: &relay.Record{Position: int64(tag)}})
				}
			}
			if len(outcomes) == 0 {
				continue
			}
			upTo, single := ss.remove(outcomes)
			want := maps.Clone(open)
			for _, tag := range settled {
				delete(want, tag)
			}
			if upTo > 0 && !open[upTo] {
				t.Fatalf("tag %d is not open", upTo)
			}
			maps.DeleteFunc(open, func(tag uint64, _ bool) bool { return tag <= upTo || slices.Contains(single, tag) })
			if !maps.Equal(open, want) {
				t.Fatalf("after settling %v: open %v, want %v", settled, open, want)
			}
		}
		if int(ss.source.unsettled.Load()) != len(open) || (len(open) == 0) != (ss.budget.held == 0) {
			t.Fatalf("%d messages, %d bytes, want %d messages", ss.source.unsettled.Load(), ss.budget.held, len(open))
		}
	})
}

func TestNothingIsReadWhileTheBudgetIsUsedUp(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(*budget){
		"until it is free": func(b *budget) { b.add(-1) },
		"until its end":    func(b *budget) { b.end() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				defer here.Close()
				defer there.Close()
				limit := newBudget(10)
				conn := &limitedConn{Conn: here, budget: limit}
				limit.add(10)
				read := false
				go func() {
					_, err := conn.Read(make([]byte, 1))
					read = err == nil
				}()
				if err := here.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
					t.Fatal(err)
				}
				go func() { _, _ = there.Write([]byte("x")) }()
				time.Sleep(time.Hour) //nolint:forbidigo // in the bubble: the deadline passes
				if synctest.Wait(); read {
					t.Error("it is read before")
				}
				free(limit)
				if synctest.Wait(); !read {
					t.Error("it is not read afterwards")
				}
			})
		})
	}
}

// The other side may be lost during the wait, when its heartbeats are not read.
func TestASilentConnectionIsLostAfterTheBudgetWasUsedUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		limit := newBudget(10)
		limit.add(10)
		failed := make(chan error)
		go func() {
			_, err := (&limitedConn{Conn: here, budget: limit}).Read(make([]byte, 1))
			failed <- err
		}()
		synctest.Wait()
		begun := time.Now()
		limit.add(-1)
		if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) != silence {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}
