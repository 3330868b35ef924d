package expression

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// turns bounds the evaluations that go on at once. A company has one turn at a time, so it delays those of others by
// one evaluation at most, however many of its own wait.
type turns struct {
	all       chan struct{}
	mu        sync.Mutex
	companies map[uuid.UUID]*companyTurn // those with an evaluation that has or awaits a turn
}

type companyTurn struct {
	taken chan struct{} // of capacity 1
	users int
}

func newTurns(atOnce int) *turns {
	return &turns{all: make(chan struct{}, atOnce), companies: make(map[uuid.UUID]*companyTurn)}
}

// enter waits for a turn, in the order of asking within a company. The error is that of ctx.
func (t *turns) enter(ctx context.Context, company uuid.UUID) error {
	t.mu.Lock()
	own := t.companies[company]
	if own == nil {
		own = &companyTurn{taken: make(chan struct{}, 1)}
		t.companies[company] = own
	}
	own.users++
	t.mu.Unlock()
	select {
	case own.taken <- struct{}{}:
	case <-ctx.Done():
		t.forget(company, own)
		return ctx.Err()
	}
	select {
	case t.all <- struct{}{}:
		return nil
	case <-ctx.Done():
		<-own.taken
		t.forget(company, own)
		return ctx.Err()
	}
}

// leave ends the turn of a company.
func (t *turns) leave(company uuid.UUID) {
	<-t.all
	t.mu.Lock()
	own := t.companies[company]
	t.mu.Unlock()
	<-own.taken
	t.forget(company, own)
}

func (t *turns) forget(company uuid.UUID, own *companyTurn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(t.companies, company)
	}
}
