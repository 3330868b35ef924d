package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"spendhook/storage"
	"spendhook/storage/companies"
)

type companiesPage struct {
	Rows []companyRow
	Next string
}

// companyRow is a company with its troubles.
type companyRow struct {
	companies.Company

	Pending, Waiting, Dead int64
	Failing                int // subscribers
}

// companiesSize is the number of companies on a page. Each takes some round trips to Redis.
const companiesSize = 20

// listCompanies finds companies by their names. A UUID leads to its company.
func (s *server) listCompanies(ctx context.Context, v *visit) error {
	find := strings.TrimSpace(v.Query("find"))
	if id, err := uuid.Parse(find); err == nil {
		if v.r.Header.Get("HX-Request") != "" { // of the search as one types, which would show the other page within this one
			v.w.Header().Set("HX-Redirect", v.Of(id, "/console/"))
			return nil
		}
		http.Redirect(v.w, v.r, v.Of(id, "/console/"), http.StatusSeeOther)
		return nil
	}
	list, next, err := s.opts.Companies.List(ctx, companies.Filter{Search: find, Cursor: v.Query("cursor"), Size: companiesSize})
	if err != nil {
		return err
	}
	page := companiesPage{Next: v.next(next)}
	for _, c := range list {
		row, err := s.companyRow(ctx, c)
		if err != nil {
			return err
		}
		page.Rows = append(page.Rows, row)
	}
	v.show("companies", "Companies", page)
	return nil
}

func (s *server) companyRow(ctx context.Context, c companies.Company) (companyRow, error) {
	row := companyRow{Company: c}
	var err error
	if row.Pending, err = s.opts.Events.Pending(ctx, c.UUID); err != nil {
		return row, err
	}
	stats, err := s.opts.Deliveries.CompanyStats(ctx, c.UUID)
	if err != nil {
		return row, err
	}
	row.Waiting, row.Dead = stats.Live, stats.Dead
	subs, states, err := s.states(ctx, c.UUID)
	row.Failing = countStates(len(subs), states).Failing
	return row, err
}

// nameCompany gives the company its name.
func (s *server) nameCompany(ctx context.Context, v *visit, company uuid.UUID) error {
	v.setAuditEntry("company.name", "", &company, "company", company.String())
	if _, _, err := s.opts.Companies.Put(ctx, companies.Company{UUID: company, Name: v.field("name")}); err != nil {
		return err
	}
	s.names.known.Remove(company)
	return v.done("/console/", "named")
}

// CompanyName returns what a page calls a company: the start of its UUID if it has no name.
func (v *visit) CompanyName(id uuid.UUID) string {
	now := v.server.opts.Now()
	name := v.server.names.of(v.r.Context(), id, now, v.named < waitOnNames)
	v.named += v.server.opts.Now().Sub(now)
	return cmp.Or(name, id.String()[:8])
}

// names remembers names of companies for a short time. It is safe for concurrent use.
type names struct {
	store *companies.Store
	known *lru.Cache[uuid.UUID, knownName]
	away  atomic.Int64 // until when the database is not asked, in Unix ms: a page must not wait for each name
}

type knownName struct {
	name string
	at   time.Time
}

const (
	keepNames   = 10 * time.Second
	waitOnName  = 200 * time.Millisecond
	waitOnNames = time.Second // of a page
)

func newNames(store *companies.Store) *names {
	known, err := lru.New[uuid.UUID, knownName](4096)
	if err != nil {
		panic(err) // the size is wrong
	}
	return &names{store: store, known: known}
}

// of returns "" for a company without a name, and while the database is not available. Without ask, it returns what is known.
func (n *names) of(ctx context.Context, id uuid.UUID, now time.Time, ask bool) string {
	known, ok := n.known.Get(id)
	if !ask || ok && now.Sub(known.at) < keepNames || now.UnixMilli() < n.away.Load() {
		return known.name
	}
	within, cancel := context.WithTimeout(ctx, waitOnName)
	defer cancel()
	c, err := n.store.Get(within, id)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		if ctx.Err() == nil { // else the visitor has left
			n.away.Store(now.Add(keepNames).UnixMilli())
		}
		return known.name
	}
	n.known.Add(id, knownName{c.Name, now})
	return c.Name
}
