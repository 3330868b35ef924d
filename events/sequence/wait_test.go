package sequence_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/events/sequence"
)

// wait starts a wait, and returns a channel for its result.
func wait(ctx context.Context, a *sequence.Reader, of uuid.UUID, after int64) <-chan error {
	done := make(chan error, 1)
	go func() {
		arrived, err := a.Wait(ctx, of, after)
		if err == nil && !arrived {
			err = context.Canceled
		}
		done <- err
	}()
	return done
}

func TestWaitingEndsWithTheNextEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := sequence.New(b.Redis)
	t.Cleanup(a.Close)
	b.Accept(t, newEvent("e1"))
	if err := <-wait(t.Context(), a, company, 0); err != nil {
		t.Errorf("for what is there: %v", err)
	}
	first, second := wait(t.Context(), a, company, 1), wait(t.Context(), a, company, 2)
	for n, id := range []string{"e2", "e3"} {
		b.Accept(t, newEvent(id))
		if err := <-[]<-chan error{first, second}[n]; err != nil {
			t.Errorf("for %s: %v", id, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	given := wait(ctx, a, company, 3)
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("when given up: %v", err)
	}
}

// The waits of a company and of all companies are bounded, and places are freed.
func TestWaitsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := sequence.New(b.Redis)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ends []<-chan error
	refused := func(of uuid.UUID) bool {
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := a.Wait(short, of, 0)
		return errors.Is(err, sequence.ErrTooManyWaiting)
	}
	fill := func(of uuid.UUID) {
		for range sequence.MaxCompanyWaiting {
			ends = append(ends, wait(ctx, a, of, 0))
		}
		for a.Waiting() < len(ends) {
			runtime.Gosched()
		}
	}
	fill(company)
	if !refused(company) {
		t.Error("more of a company wait than may")
	}
	if refused(uuid.UUID{9}) {
		t.Error("one company took the places of others")
	}
	for i := 1; len(ends) < sequence.MaxWaiting; i++ {
		fill(uuid.UUID{byte(i), 1})
	}
	if !refused(uuid.UUID{9}) {
		t.Error("more wait than may")
	}
	cancel()
	for _, end := range ends {
		<-end
	}
	if refused(company) {
		t.Error("no place came back")
	}
	a.Close()
}

func TestCloseEndsAllWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := sequence.New(b.Redis)
	var waiting sync.WaitGroup
	for i := range 30 {
		end := wait(t.Context(), a, uuid.UUID{byte(i / 10)}, 0)
		waiting.Go(func() {
			if err := <-end; !errors.Is(err, context.Canceled) {
				t.Errorf("closed: %v", err)
			}
		})
	}
	a.Close()
	waiting.Wait()
	if err := <-wait(t.Context(), a, company, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("after it was closed: %v", err)
	}
}
