package history

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"spendhook/events"
)

// maxSearches is how many searches of a replica may be under way, one of each company: a search may take a connection of
// the database and a core for its 2 s.
const maxSearches = 4

// searches are the companies with a search under way.
type searches struct {
	mu sync.Mutex
	of map[uuid.UUID]bool
}

// begin reports whether a search of a company may begin. If so, end must follow.
func (s *searches) begin(company uuid.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[company] || len(s.of) >= maxSearches {
		return false
	}
	s.of[company] = true
	return true
}

func (s *searches) end(company uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, company)
}

// HasHistory reports whether there is an archive, so that List can search.
func (r *Reader) HasHistory() bool { return r.archive != nil }

// search reads a page of events that are found in the archive.
func (l *listing) search(ctx context.Context, company uuid.UUID) error {
	if !l.reader.HasHistory() {
		return events.ErrNoHistory
	}
	if !l.reader.searches.begin(company) {
		return events.ErrSearching
	}
	defer l.reader.searches.end(company)
	l.at.Company = company
	sp := l.reader.span("", company, l.filter.From, l.filter.To)
	sp.Search = l.filter.Search
	places, next, err := l.reader.archive.Search(ctx, sp, l.at.Place, l.batch())
	if err != nil {
		return err
	}
	taken, err := l.take(ctx, places)
	if err != nil {
		return err
	}
	if l.more = taken < len(places) || next.ID != ""; taken == len(places) {
		l.at.Place = next
	}
	return nil
}
