package archive

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/uptrace/bun"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/storage"
)

// query is what a search asks for.
type query struct {
	history.Span

	words        []string // all of them are in the event
	field, value string   // a field of the event has this value; "": any
}

// newQuery reads the text of a span: path=value, or words.
func newQuery(sp history.Span) query {
	path, value, ok := strings.Cut(sp.Search, "=")
	if !ok || path == "" || strings.ContainsFunc(path, unicode.IsSpace) {
		return query{Span: sp, words: words(sp.Search)}
	}
	q := query{Span: sp, field: path, value: value}
	if !slices.Contains(unindexed, path) {
		q.words = words(value)
	}
	return q
}

// matches reports whether an event is one that is asked for, and not only one with the same hashes.
func (q *query) matches(ref events.Ref, stored string) bool {
	c := readContent(ref, stored, q.field, q.value)
	if q.field != "" {
		return c.found
	}
	have := make(map[string]bool)
	for _, word := range words(c.text.String()) {
		have[word] = true
	}
	return !slices.ContainsFunc(q.words, func(word string) bool { return !have[word] })
}

const (
	searchLimit = 2 * time.Second
	searchStep  = 20 // events that are examined at once
)

// Search finds up to n places with the text of a span, newest first; see history.Archive. It takes at most 2 s, or two
// thirds of the time that ctx has if that is less. Without a letter or digit in the text or the value it examines all
// events. Of an event with more than 300 different words it finds only the first ones. It cannot search for a word that
// some hundred thousand events of one day have: its error is events.ErrUnavailable then.
func (s *Store) Search(ctx context.Context, sp history.Span, after history.Place, n int) (found []history.Place, next history.Place, err error) {
	q := newQuery(sp)
	ctx, cancel := context.WithTimeout(ctx, searchTime(ctx))
	defer cancel()
	first, last, err := s.days(ctx)
	if err != nil {
		return nil, next, unavailable(err)
	}
	if after.ID != "" {
		last = min(last, int64(math.Floor(after.MS))/dayMS)
	}
	next = after
	for day := min(last, q.High/dayMS); day >= max(first, q.Low/dayMS); {
		examined, err := s.examine(ctx, &q, day, next)
		if errors.Is(err, storage.ErrUnavailable) && next != after {
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

// searchTime leaves a third of the time of a request for reading what was found.
func searchTime(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(searchLimit, time.Until(deadline)*2/3) //nolint:forbidigo // the context's clock
	}
	return searchLimit
}

type examined struct {
	place   history.Place
	matches bool
}

// examine examines the next events of one day that have the terms of a query.
func (s *Store) examine(ctx context.Context, q *query, day int64, after history.Place) ([]examined, error) {
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
		matches := q.matches(events.Ref{Company: q.Company, ID: row.Member}, string(row.Value))
		list[i] = examined{history.Place{MS: row.Score, ID: row.Member}, matches}
	}
	return list, err
}

func searchQuery(db bun.IDB, q *query, day int64, after history.Place) *bun.SelectQuery {
	k := key{Company: storage.Key(q.Company), Accepted: day * dayMS}
	terms := termsOf(k, q.words)
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
