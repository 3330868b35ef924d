//go:build faults

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
)

// moveSlots moves a range of slots, ends included, with the keys in it to
// another master of the Cluster while it is used, as a resharding does: slot by
// slot, and a few keys at a time, so that clients see every state in between.
// Slots that the other master serves already stay with it. It returns how many
// keys were moved.
func moveSlots(tb testing.TB, servers []*redistest.Server, to, first, last int) (keys int) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Minute)
	defer cancel()
	m := &mover{ctx: ctx, to: servers[to]}
	for _, s := range servers {
		m.masters = append(m.masters, s.Client())
		id, err := m.masters[len(m.masters)-1].Do(ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			tb.Fatal(err)
		}
		m.ids = append(m.ids, id)
	}
	for slot := first; slot <= last; slot++ {
		from, err := m.owner(slot)
		if err == nil && from != to {
			err = m.move(slot, from, to)
		}
		if err != nil {
			tb.Fatalf("move slot %d: %v", slot, err)
		}
	}
	return m.moved
}

type mover struct {
	ctx     context.Context //nolint:containedctx // of one call
	to      *redistest.Server
	masters []redis.UniversalClient
	ids     []string
	moved   int // keys
}

// owner returns the master that claims to serve the slot.
func (m *mover) owner(slot int) (int, error) {
	shards, err := m.masters[0].ClusterSlots(m.ctx).Result()
	if err != nil {
		return 0, err
	}
	for _, s := range shards {
		if s.Start <= slot && slot <= s.End {
			return slices.Index(m.ids, s.Nodes[0].ID), nil
		}
	}
	return 0, errors.New("nobody serves it")
}

func (m *mover) move(slot, from, to int) error {
	if err := m.set(to, slot, "IMPORTING", m.ids[from]); err != nil {
		return err
	}
	if err := m.set(from, slot, "MIGRATING", m.ids[to]); err != nil {
		return err
	}
	for {
		keys, err := m.masters[from].ClusterGetKeysInSlot(m.ctx, slot, 10).Result()
		if err != nil || len(keys) == 0 {
			return m.end(slot, to, err)
		}
		if err := m.migrate(from, keys); err != nil {
			return err
		}
		m.moved += len(keys)
	}
}

func (m *mover) set(master, slot int, state ...any) error {
	return m.masters[master].Do(m.ctx, append([]any{"CLUSTER", "SETSLOT", slot}, state...)...).Err()
}

// migrate takes each key from one master to the other in one step.
func (m *mover) migrate(from int, keys []string) error {
	host, port, _ := strings.Cut(m.to.Addr(), ":")
	args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
	for _, k := range keys {
		args = append(args, k)
	}
	return m.masters[from].Do(m.ctx, args...).Err()
}

// end tells all masters the new owner of the slot, the new owner first.
func (m *mover) end(slot, to int, err error) error {
	if err != nil {
		return err
	}
	if err := m.set(to, slot, "NODE", m.ids[to]); err != nil {
		return err
	}
	for i := range m.masters {
		if i == to {
			continue
		}
		if err := m.set(i, slot, "NODE", m.ids[to]); err != nil {
			return fmt.Errorf("tell master %s: %w", strconv.Itoa(i), err)
		}
	}
	return nil
}
