package events

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/script"
)

//go:embed lua/accept.lua
var acceptSource string

var acceptScript = redis.NewScript(acceptSource)

// acceptChunk bounds the events of one script call, and with them how long
// Redis does nothing else.
const acceptChunk = 64

// entry is one event on its way through accept.lua. commit sets status, or err
// to ErrConflict or to an error wrapping ErrUnavailable. nonce is new for every
// entry and stays when it is sent again.
type entry struct {
	Stored
	nonce  uint32
	status Status
	err    error
}

// commit runs accept.lua for the entries, those of a company in order, in one
// pipeline. The client may send the pipeline again after a lost reply.
func (s *Store) commit(ctx context.Context, entries []*entry) {
	groups := script.Groups(s.client, entries, acceptChunk, func(e *entry) int { return Partition(e.CompanyUUID) })
	calls := make([]*script.Call, len(groups))
	now := time.UnixMilli(s.now().UnixMilli()).UTC() // as it is kept
	for i, g := range groups {
		calls[i] = acceptCall(g, now, s.retention)
	}
	_ = script.Run(ctx, s.client, nil, calls...) // each call tells its own error
	for i, g := range groups {
		replies, err := calls[i].Strings()
		if err == nil && len(replies) != len(g) {
			err = errors.New("unexpected reply")
		}
		for j, e := range g {
			e.AcceptedAt = now
			if err != nil {
				e.status, e.err = "", unavailable("accept event", err)
			} else {
				e.status, e.err = verdict(replies[j])
			}
		}
	}
}

func acceptCall(group []*entry, now time.Time, retention time.Duration) *script.Call {
	c := &script.Call{
		Script: acceptScript,
		Keys:   make([]string, 0, 4*len(group)),
		Args: append(make([]any, 0, 4+5*len(group)),
			fmt.Sprintf("%013d", now.UnixMilli()), retention.Milliseconds(), (retention + grace).Milliseconds(), nil),
	}
	numbers := make(map[uuid.UUID]int, 1) // of companies
	for _, e := range group {
		if _, ok := numbers[e.CompanyUUID]; ok {
			continue
		}
		numbers[e.CompanyUUID] = len(numbers) + 1
		p := Partition(e.CompanyUUID)
		c.Keys = append(c.Keys, IndexKey(e.CompanyUUID), OpenKey(p), CompaniesKey(p))
		c.Args = append(c.Args, e.CompanyUUID.String())
	}
	c.Args[3] = len(numbers)
	for _, e := range group {
		c.Keys = append(c.Keys, EventKey(e.Ref()))
		c.Args = append(c.Args, numbers[e.CompanyUUID], e.ID, keptBody(e.Ref(), e.Body), fmt.Sprintf("%08x", e.nonce))
	}
	return c
}

// verdict reads a reply of accept.lua.
func verdict(said string) (Status, error) {
	if said == "CONFLICT" {
		return "", ErrConflict
	}
	return Status(said), nil
}
