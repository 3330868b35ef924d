package archive

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/storage"
)

// Query selects events of a company. Its fields combine with AND.
type Query struct {
	Company uuid.UUID
	// Text is words, all of which are in the id, the type or the payload of the event, as whole words. Case and accents
	// do not matter. Without words: any.
	Text string
	// Field is the path of a field of the event, such as metadata.cardUuid, and Value its exact value: a string, a
	// number as it was sent, true or false. The elements of an array have the path of the array. An empty Field: any.
	Field, Value string
	Low, High    int64         // the span of acceptance, in unix ms, both included
	After        history.Place // only events before this place; the zero Place: from the newest
}

func (q *Query) matches(c content) bool {
	return (q.Field == "" || c.fields[field{q.Field, q.Value}]) &&
		!slices.ContainsFunc(words(q.Text), func(word string) bool { return !slices.Contains(c.words, word) })
}

const (
	searchLimit = 2 * time.Second
	searchStep  = 20 // events that are examined at once
)

// Search finds up to n places of a query, newest first. next is the After of the query for the following ones, or the zero
// Place when there are no more. Within 2 s a search may find fewer, even none; it has a next then. Without words in Text
// or Value it examines all events. Of an event with more than 300 different words it finds only the first ones.
func (s *Store) Search(ctx context.Context, q Query, n int) (found []history.Place, next history.Place, err error) {
	ctx, cancel := context.WithTimeout(ctx, searchLimit)
	defer cancel()
	first, last, err := s.days(ctx)
	if err != nil {
		return nil, next, unavailable(err)
	}
	if q.After.ID != "" {
		last = min(last, int64(math.Floor(q.After.MS))/dayMS)
	}
	next = q.After
	for day := min(last, q.High/dayMS); day >= max(first, q.Low/dayMS); {
		examined, err := s.examine(ctx, q, day, next)
		if errors.Is(err, storage.ErrUnavailable) && next != q.After {
			return found, next, nil
		}
		if err != nil {
			return nil, next, unavailable(err)
		}
		for _, e := range examined {
			next = e.place
			if e.matches {
				found = append(found, e.place)
			}
			if len(found) == n {
				return found, next, nil
			}
		}
		if len(examined) < searchStep {
			next = history.Place{MS: float64(day * dayMS), ID: "-"} // no id is less than -
			day--
		}
	}
	return found, history.Place{}, nil
}

type examined struct {
	place   history.Place
	matches bool
}

// examine examines the next events of one day that have the terms of a query.
func (s *Store) examine(ctx context.Context, q Query, day int64, after history.Place) ([]examined, error) {
	var rows []struct {
		Score  float64
		Member string
		Value  []byte
	}
	err := s.db.Query(ctx, "search history", func(ctx context.Context, db bun.IDB) error {
		return searchQuery(db, q, day, after).Scan(ctx, &rows)
	})
	list := make([]examined, len(rows))
	for i, row := range rows {
		c := contentOf(events.Ref{Company: q.Company, ID: row.Member}, string(row.Value))
		list[i] = examined{history.Place{MS: row.Score, ID: row.Member}, q.matches(c)}
	}
	return list, err
}

func searchQuery(db bun.IDB, q Query, day int64, after history.Place) *bun.SelectQuery {
	k := key{Company: storage.Key(q.Company), Accepted: day * dayMS}
	asked := words(q.Text)
	if q.Field != "" {
		asked = append(asked, words(q.Value)...)
	}
	terms := termsOf(k, asked)
	of := db.NewSelect().Column("value").Where("company = ? AND value IS NOT NULL", k.Company).Limit(searchStep)
	switch {
	case len(terms) == 0:
		of = of.TableExpr("history_events")
	case storage.IsPostgres(db):
		of = of.TableExpr("history_events").Where("terms @> ?", numbers(terms))
	default: // SQLite keeps this order: it begins with the terms
		of = of.TableExpr("history_terms CROSS JOIN history_events").Where("number = history_terms.rowid").
			Where("history_terms MATCH ?", tokens(terms, " AND "))
	}
	sp := history.Span{Low: max(q.Low, day*dayMS), High: min(q.High, (day+1)*dayMS-1)}
	return page(of, sp, after, "accepted", "place", "id")
}
