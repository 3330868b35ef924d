package api

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"embed"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed docs/*.html docs/*.js docs/*.css docs/*.png docs/*.gz
var docsFiles embed.FS

// docsPolicy lets the page run its own scripts and call this daemon only.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; " +
	"img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// asset is one file. If build is set, the file is built again when it is older than lifetime. After a
// failed build, the last file is served.
type asset struct {
	contentType string
	gzipped     bool
	cache       string // "" is cacheable
	lifetime    time.Duration
	build       func(ctx context.Context) ([]byte, error)

	mu    sync.Mutex // guards the fields below; held during build
	data  []byte
	built time.Time
}

// routeDocs serves the document and the page that shows it.
func (s *server) routeDocs() error {
	const html, js = "text/html; charset=utf-8", "text/javascript; charset=utf-8"
	for _, f := range []struct{ route, contentType, name string }{
		{"/docs", html, "index.html"},
		{"/docs/", html, "index.html"},
		{"/docs/init.js", js, "init.js"},
		{"/docs/docs.css", "text/css; charset=utf-8", "docs.css"},
		{"/docs/swagger-ui-bundle.js", js, "swagger-ui-bundle.js.gz"},
		{"/docs/swagger-ui.css", "text/css; charset=utf-8", "swagger-ui.css.gz"},
		{"/docs/favicon-32x32.png", "image/png", "favicon-32x32.png"},
	} {
		data, err := docsFiles.ReadFile("docs/" + f.name)
		if err != nil {
			return fmt.Errorf("docs page: %w", err)
		}
		s.routeAsset(f.route, &asset{contentType: f.contentType, data: data, gzipped: strings.HasSuffix(f.name, ".gz")})
	}
	page, err := errorsHTML()
	if err != nil {
		return fmt.Errorf("docs page: %w", err)
	}
	s.routeAsset("/docs/errors", &asset{contentType: html, data: page})
	s.routeAsset("/openapi.json", &asset{contentType: mediaJSON, lifetime: time.Minute, build: func(context.Context) ([]byte, error) {
		return asOf(s.document, s.opts.Now()), nil
	}})
	hooks, err := newWebhookFrame(s.document)
	if err != nil {
		return fmt.Errorf("openapi.yaml: %w", err)
	}
	s.routeAsset("/webhooks.json", &asset{contentType: mediaJSON, cache: webhooksCache, lifetime: webhooksLifetime, build: func(ctx context.Context) ([]byte, error) {
		types, err := s.opts.EventTypes.List(ctx)
		if err != nil {
			return nil, err
		}
		return hooks.document(types)
	}})
	return nil
}

// routeAsset serves an asset at a route. It decompresses the asset for a client that does not accept
// gzip.
func (s *server) routeAsset(route string, a *asset) {
	s.router.Handle(route, s.observe(route, http.MethodGet, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := s.current(r.Context(), a)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		h := w.Header()
		h.Set("Content-Type", a.contentType)
		h.Set("Content-Security-Policy", docsPolicy)
		h.Set("Cache-Control", cmp.Or(a.cache, cacheable))
		if a.gzipped {
			h.Set("Vary", "Accept-Encoding")
			if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
				if plain, err := gzip.NewReader(bytes.NewReader(data)); err == nil {
					_, _ = io.Copy(w, plain) //nolint:gosec // the embedded files are no decompression bombs
				}
				return
			}
			h.Set("Content-Encoding", "gzip")
		}
		h.Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data)
	}))).Methods(http.MethodGet)
}

func (s *server) current(ctx context.Context, a *asset) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := s.opts.Now()
	if age := now.Sub(a.built); a.build == nil || a.data != nil && age >= 0 && age < a.lifetime {
		return a.data, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	fresh, err := a.build(ctx)
	if err == nil {
		a.data = fresh
	} else if a.data == nil {
		return nil, err
	}
	a.built = now
	return a.data, nil
}
