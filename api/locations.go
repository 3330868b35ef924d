package api

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/storage/locations"
)

// locationsDeprecated is the time since which v1 is deprecated, 2026-01-01 (RFC 9745).
const locationsDeprecated = "@1767225600"

// ListLocationsV1 is GET /api/v1/locations.
func (s *server) ListLocationsV1(w http.ResponseWriter, r *http.Request, p gen.ListLocationsV1Params) {
	s.listLocations(w, r, gen.ListLocationsParams(p), deprecate(w, r))
}

// ListLocations is GET /api/v2/locations.
func (s *server) ListLocations(w http.ResponseWriter, r *http.Request, p gen.ListLocationsParams) {
	s.listLocations(w, r, p)
}

// deprecatedPath is the prefix of the deprecated routes. v2 has the same routes.
const deprecatedPath = "/api/v1/locations"

// deprecate adds the deprecation headers to an answer of a v1 route, and returns the link
// to the v2 route.
func deprecate(w http.ResponseWriter, r *http.Request) string {
	path := strings.Replace(r.URL.Path, "/api/v1/", "/api/v2/", 1)
	successor := link(&url.URL{Path: path}, r.URL.Query(), "successor-version")
	w.Header().Set("Deprecation", locationsDeprecated)
	w.Header().Set("Link", successor)
	return successor
}

func (s *server) listLocations(w http.ResponseWriter, r *http.Request, p gen.ListLocationsParams, links ...string) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		company, err := c.companyOfList(p.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		filter := locations.Filter{Company: company, Status: textOf(p.Status)}
		if p.Page == nil && p.Size == nil {
			return s.allLocations(ctx, r, filter, links)
		}
		page := pageOf(p.Page, p.Size)
		filter.Page = &page
		list, total, err := s.opts.Locations.List(ctx, filter)
		return inArray(r, page, list, total, shownLocation, links...), err
	})
}

// allLocations answers with the whole list. It reads and writes a part of the list at a time.
func (s *server) allLocations(ctx context.Context, r *http.Request, f locations.Filter, links []string) (reply, error) {
	list, total, err := s.opts.Locations.List(ctx, f)
	if err != nil {
		return reply{}, err
	}
	all := func(yield func(gen.Location, error) bool) {
		for read := int64(0); len(list) > 0; {
			for _, l := range list {
				if !yield(shownLocation(l), nil) {
					return
				}
			}
			if read += int64(len(list)); read >= total {
				return
			}
			f.After = &list[len(list)-1]
			if list, err = s.nextLocations(ctx, f); err != nil {
				yield(gen.Location{}, err)
				return
			}
		}
	}
	rep := ok(streamed[gen.Location](all))
	rep.stream, rep.bytes = true, pageBytes
	return paged(rep, r, nil, total, links...), nil
}

// nextLocations reads a further part of a list. It has a time-out of its own, since that of the
// request may end while the list is written.
func (s *server) nextLocations(ctx context.Context, f locations.Filter) ([]locations.Location, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Timeout)
	defer cancel()
	list, _, err := s.opts.Locations.List(ctx, f)
	return list, err
}

// GetLocationV1 is GET /api/v1/locations/{uuid}.
func (s *server) GetLocationV1(w http.ResponseWriter, r *http.Request, id gen.LocationPath, p gen.GetLocationV1Params) {
	s.getLocation(w, r, id, p.CompanyUUID, func(l locations.Location) any { return shownLocation(l) })
}

// GetLocation is GET /api/v2/locations/{uuid}.
func (s *server) GetLocation(w http.ResponseWriter, r *http.Request, id gen.LocationPath, p gen.GetLocationParams) {
	s.getLocation(w, r, id, p.CompanyUUID, func(l locations.Location) any {
		return gen.LocationDetail{
			UUID: l.UUID, Name: l.Name, Code: l.Code, Status: gen.LocationStatus(l.Status), CreatedAt: l.CreatedAt.Time,
		}
	})
}

func (s *server) getLocation(w http.ResponseWriter, r *http.Request, id uuid.UUID, named *uuid.UUID, show func(locations.Location) any) {
	s.doFor(w, r, named, func(ctx context.Context, company uuid.UUID) (reply, error) {
		location, err := s.opts.Locations.Get(ctx, company, id)
		return ok(show(location)), err
	})
}

func shownLocation(l locations.Location) gen.Location {
	return gen.Location{UUID: l.UUID, Name: l.Name, Code: l.Code, Status: gen.LocationStatus(l.Status)}
}
