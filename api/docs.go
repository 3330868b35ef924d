package api

import (
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"strconv"

	swaggerfiles "github.com/swaggo/files/v2"
)

//go:embed docs
var docsFiles embed.FS

// docsPolicy lets the page run its own scripts and call this daemon only.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; " +
	"img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// asset is one static file.
type asset struct {
	contentType string
	data        []byte
}

// routeDocs serves the document and the page that shows it.
func (s *server) routeDocs() error {
	const html, js = "text/html; charset=utf-8", "text/javascript; charset=utf-8"
	for _, f := range []struct {
		route, contentType string
		from               fs.FS
		name               string
	}{
		{"/docs", html, docsFiles, "docs/index.html"},
		{"/docs/", html, docsFiles, "docs/index.html"},
		{"/docs/init.js", js, docsFiles, "docs/init.js"},
		{"/docs/swagger-ui-bundle.js", js, swaggerfiles.FS, "swagger-ui-bundle.js"},
		{"/docs/swagger-ui.css", "text/css; charset=utf-8", swaggerfiles.FS, "swagger-ui.css"},
		{"/docs/favicon-32x32.png", "image/png", swaggerfiles.FS, "favicon-32x32.png"},
	} {
		data, err := fs.ReadFile(f.from, f.name)
		if err != nil {
			return fmt.Errorf("docs page: %w", err)
		}
		s.routeAsset(f.route, asset{f.contentType, data})
	}
	page, err := errorsHTML()
	if err != nil {
		return fmt.Errorf("docs page: %w", err)
	}
	s.routeAsset("/docs/errors", asset{html, page})
	s.routeAsset("/openapi.json", asset{mediaJSON, s.document})
	return nil
}

func (s *server) routeAsset(route string, a asset) {
	s.router.Handle(route, s.observe(route, http.MethodGet, a)).Methods(http.MethodGet)
}

// ServeHTTP writes the file.
func (a asset) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", a.contentType)
	h.Set("Content-Length", strconv.Itoa(len(a.data)))
	h.Set("Content-Security-Policy", docsPolicy)
	h.Set("Cache-Control", cacheable)
	_, _ = w.Write(a.data)
}
