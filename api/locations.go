package api

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"spendhook/api/gen"
	"spendhook/storage/locations"
)

// locationsDeprecated is the time since which v1 is deprecated, 2026-01-01 (RFC 9745).
const locationsDeprecated = "@1767225600"

// ListLocationsV1 is GET /api/v1/locations.
func (s *server) ListLocationsV1(ctx context.Context, q *request, p gen.ListLocationsV1Params) (reply, error) {
	deprecate(q.w, q.sent) // replaces the Link of outer by one with the canonical query
	return s.ListLocations(ctx, q, gen.ListLocationsParams(p))
}

// ListLocations is GET /api/v2/locations.
func (s *server) ListLocations(ctx context.Context, q *request, p gen.ListLocationsParams) (reply, error) {
	f := locations.Filter{Company: q.companies, Status: textOf(p.Status)}
	page := pageOf(p.Page, p.Size)
	if whole := p.Page == nil && p.Size == nil; !whole {
		f.Page = &page
	}
	list, total, err := s.opts.Locations.List(ctx, f)
	if err != nil || f.Page != nil {
		return inArray(q, page, list, total, shownLocation), err
	}
	read, last := int64(len(list)), list
	all := inParts(s, q, list, shownLocation, func(ctx context.Context) (more []locations.Location, err error) {
		if read >= total {
			return nil, nil
		}
		f.After = &last[len(last)-1]
		last, _, err = s.opts.Locations.List(ctx, f)
		read += int64(len(last))
		return last, err
	})
	return paged(streamed(all, pageBytes), q, nil, total), nil
}

// deprecatedPath is the prefix of the deprecated routes. v2 has the same routes.
const deprecatedPath = "/api/v1/locations"

// deprecate adds the deprecation headers to an answer of a v1 route, with the link to the v2 route.
func deprecate(w http.ResponseWriter, r *http.Request) {
	path := strings.Replace(r.URL.Path, "/api/v1/", "/api/v2/", 1)
	w.Header().Set("Deprecation", locationsDeprecated)
	if l := joined([]string{link(&url.URL{Path: path}, nil, "successor-version")}); l != "" {
		w.Header().Set("Link", l)
	}
}

// GetLocationV1 is GET /api/v1/locations/{uuid}.
func (s *server) GetLocationV1(ctx context.Context, q *request, id gen.LocationPath) (reply, error) {
	location, err := s.opts.Locations.Get(ctx, q.company, id)
	return ok(shownLocation(location)), err
}

// GetLocation is GET /api/v2/locations/{uuid}.
func (s *server) GetLocation(ctx context.Context, q *request, id gen.LocationPath) (reply, error) {
	l, err := s.opts.Locations.Get(ctx, q.company, id)
	return ok(gen.LocationDetail{
		UUID: l.UUID, Name: l.Name, Code: l.Code, Status: gen.LocationStatus(l.Status), CreatedAt: l.CreatedAt.Time,
	}), err
}

func shownLocation(l locations.Location) gen.Location {
	return gen.Location{UUID: l.UUID, Name: l.Name, Code: l.Code, Status: gen.LocationStatus(l.Status)}
}
