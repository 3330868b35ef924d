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

// asset is one file.
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
	s.routeAsset("/openapi.json", &cachedAsset{server: s, lifetime: time.Minute, build: func(context.Context) (asset, error) {
		return asset{contentType: mediaJSON, data: asOf(s.document, s.opts.Now())}, nil
	}})
	hooks, err := newWebhookFrame(s.document)
	if err != nil {
		return fmt.Errorf("openapi.yaml: %w", err)
	}
	s.routeAsset("/webhooks.json", &cachedAsset{server: s, lifetime: webhooksLifetime, build: func(ctx context.Context) (asset, error) {
		types, err := s.opts.EventTypes.List(ctx)
		if err != nil {
			return asset{}, err
		}
		text, err := hooks.document(types)
		return asset{contentType: mediaJSON, data: text, cache: webhooksCache}, err
	}})
	return nil
}

func (s *server) routeAsset(route string, a http.Handler) {
	s.router.Handle(route, s.observe(route, http.MethodGet, a)).Methods(http.MethodGet)
}

// cachedAsset is an asset that is built again when it is older than lifetime. If that fails,
// the last one is served.
type cachedAsset struct {
	server   *server
	lifetime time.Duration
	build    func(ctx context.Context) (asset, error)

	mu    sync.Mutex // guards what follows, and is held while the asset is built
	built time.Time
	asset asset
}

// ServeHTTP answers with the asset.
func (c *cachedAsset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), c.server.opts.Timeout)
	defer cancel()
	a, err := c.current(ctx)
	if err != nil {
		c.server.fail(w, r, err)
		return
	}
	a.ServeHTTP(w, r)
}

func (c *cachedAsset) current(ctx context.Context) (asset, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.server.opts.Now()
	if age := now.Sub(c.built); c.asset.data != nil && age >= 0 && age < c.lifetime {
		return c.asset, nil
	}
	fresh, err := c.build(ctx)
	switch {
	case err == nil:
		c.asset = fresh
	case c.asset.data == nil:
		return asset{}, err
	}
	c.built = now
	return c.asset, nil
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
