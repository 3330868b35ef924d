package history

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spendhook/events/layout"
	"spendhook/internal/cursor"
)

const walkName = "events of a company"

// maxWalk bounds one step of Walk.
const maxWalk = 1000

// Walk lists the ids a company's events accepted between from and to, both
// inclusive, oldest first, at most n (1..1,000) at a time. after is the next of
// the step before, "" to start; next is "" once there are no more. A walk may
// be resumed after any time: what retention dropped meanwhile is passed over.
// cursor.ErrBad when after is not of this walk.
func (r *Reader) Walk(ctx context.Context, company uuid.UUID, from, to time.Time, after string, n int) (ids []string, next string, err error) {
	at := position{Company: company}
	if err := cursor.Decode(after, walkName, company, &at); err != nil {
		return nil, "", err
	}
	n = max(1, min(n, maxWalk))
	sp := r.span(layout.IndexKey(company), &from, &to)
	sp.Ascending = true
	places, err := ReadIndex(ctx, r.client, sp, at.place(), n+1)
	if err != nil {
		return nil, "", err
	}
	if len(places) > n {
		places = places[:n]
		next = cursor.Encode(walkName, company, position{Company: company, MS: places[n-1].MS, ID: places[n-1].ID})
	}
	for _, p := range places {
		ids = append(ids, p.ID)
	}
	return ids, next, nil
}
