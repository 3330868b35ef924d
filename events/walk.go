package events

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// maxWalk bounds one step of Walk.
const maxWalk = 1000

// Walk lists the ids a company's events accepted between from and to, both
// inclusive, oldest first, at most n (1..1,000) at a time. after is the next of
// the step before, "" to start; next is "" once there are no more. A walk may
// be resumed after any time: what retention dropped meanwhile is passed over.
func (s *Store) Walk(ctx context.Context, company uuid.UUID, from, to time.Time, after string, n int) (ids []string, next string, err error) {
	at, err := parsePlace(after)
	if err != nil {
		return nil, "", err
	}
	n = max(1, min(n, maxWalk))
	places, err := s.page(ctx, s.span(company, &from, &to, ascending), at, n+1)
	if err != nil {
		return nil, "", err
	}
	if len(places) > n {
		places = places[:n]
		next = places[n-1].String()
	}
	for _, p := range places {
		ids = append(ids, p.id)
	}
	return ids, next, nil
}

// String is "<ms>:<id>".
func (p place) String() string { return strconv.FormatInt(p.ms, 10) + ":" + p.id }

func parsePlace(text string) (place, error) {
	if text == "" {
		return place{}, nil
	}
	ms, id, _ := strings.Cut(text, ":")
	parsed, err := strconv.ParseUint(ms, 10, 63)
	if err != nil || !validID(id) {
		return place{}, ErrBadCursor
	}
	return place{ms: int64(parsed), id: id}, nil
}
