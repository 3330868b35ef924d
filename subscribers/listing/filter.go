package listing

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"

	"spendhook/internal/invalid"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
)

const defaultSize = 20

// Filter selects subscribers. Zero and nil fields match all. An invalid CallbackURL gives an
// *invalid.Error.
type Filter struct {
	Company *uuid.UUID // nil lists all companies
	UUID    *uuid.UUID
	Name    string // part of the name, in any letter case
	// CallbackURL is the whole URL, normalised before it is compared.
	CallbackURL string
	Enabled     *bool
	Events      []string           // any of these
	Among       map[uuid.UUID]bool // one of these; nil: any
	Page        int                // from 0
	Size        int                // 0 means 20
}

// page collects one page of the matching subscribers and counts the others.
type page struct {
	Filter

	items []subscribers.Subscriber
	total int
}

func newPage(f Filter) (*page, error) {
	var problems invalid.Error
	if f.CallbackURL != "" {
		f.CallbackURL = callback.Any.Normalize(&problems, f.CallbackURL)
	}
	f.Size = cmp.Or(f.Size, defaultSize)
	if len(f.Events) == 0 {
		f.Events = nil // for matchesAll
	}
	f.Name = strings.ToLower(f.Name)
	return &page{Filter: f}, problems.OrNil()
}

// Select returns a page of the matching subscribers, and the number of all matching ones.
func (f Filter) Select(all []*subscribers.Subscriber) (items []subscribers.Subscriber, total int, err error) {
	p, err := newPage(f)
	if err != nil {
		return nil, 0, err
	}
	p.add(all)
	return p.items, p.total, nil
}

func (p *page) add(all []*subscribers.Subscriber) {
	for _, s := range all {
		if !p.matches(s) {
			continue
		}
		if p.total/p.Size == p.Page && s.Locked == nil { // a damaged subscriber is counted but not shown
			shown := *s // it may be shared
			shown.Secrets, shown.Certificate = nil, nil
			p.items = append(p.items, shown)
		}
		p.total++
	}
}

// skip counts n that match, if none of them is on the page.
func (p *page) skip(n int) bool {
	if n > 0 && p.total/p.Size <= p.Page && (p.total+n-1)/p.Size >= p.Page {
		return false
	}
	p.total += n
	return true
}

// matchesAll reports whether the filter matches all subscribers of all companies.
func (p *page) matchesAll() bool {
	return reflect.DeepEqual(p.Filter, Filter{Page: p.Page, Size: p.Size})
}

func (p *page) matches(s *subscribers.Subscriber) bool {
	return (p.Among == nil || p.Among[s.UUID]) &&
		(p.UUID == nil || *p.UUID == s.UUID) &&
		(p.Enabled == nil || *p.Enabled == s.Enabled) &&
		(p.CallbackURL == "" || p.CallbackURL == s.CallbackURL) &&
		strings.Contains(strings.ToLower(s.Name), p.Name) &&
		(len(p.Events) == 0 || slices.ContainsFunc(p.Events, s.Wants))
}
