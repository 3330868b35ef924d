package api

import (
	"bytes"
	"cmp"
	"compress/gzip"
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

// asset is one static file.
type asset struct {
	contentType string
	data        []byte
	gzipped     bool
	cache       string // "" is cacheable
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
		s.routeAsset(f.route, asset{contentType: f.contentType, data: data, gzipped: strings.HasSuffix(f.name, ".gz")})
	}
	page, err := errorsHTML()
	if err != nil {
		return fmt.Errorf("docs page: %w", err)
	}
	s.routeAsset("/docs/errors", asset{contentType: html, data: page})
	s.routeAsset("/openapi.json", &today{source: s.document, now: s.opts.Now})
	hooks, err := newWebhooks(s)
	if err != nil {
		return fmt.Errorf("openapi.yaml: %w", err)
	}
	s.routeAsset("/webhooks.json", hooks)
	return nil
}

func (s *server) routeAsset(route string, a http.Handler) {
	s.router.Handle(route, s.observe(route, http.MethodGet, a)).Methods(http.MethodGet)
}

// today is the document with examples that are not a week old.
type today struct {
	source []byte
	now    func() time.Time

	mu    sync.Mutex
	day   time.Time
	asset asset
}

// ServeHTTP answers with the document of the day.
func (t *today) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t.current().ServeHTTP(w, r)
}

func (t *today) current() asset {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); !t.day.Equal(now.UTC().Truncate(24 * time.Hour)) {
		t.day = now.UTC().Truncate(24 * time.Hour)
		t.asset = asset{contentType: mediaJSON, data: asOf(t.source, now)}
	}
	return t.asset
}

// ServeHTTP writes the file, compressed as it is kept where the client takes that.
func (a asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", a.contentType)
	h.Set("Content-Security-Policy", docsPolicy)
	h.Set("Cache-Control", cmp.Or(a.cache, cacheable))
	if a.gzipped {
		h.Set("Vary", "Accept-Encoding")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			if plain, err := gzip.NewReader(bytes.NewReader(a.data)); err == nil {
				_, _ = io.Copy(w, plain) //nolint:gosec // what is embedded is no bomb
			}
			return
		}
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Length", strconv.Itoa(len(a.data)))
	_, _ = w.Write(a.data)
}
