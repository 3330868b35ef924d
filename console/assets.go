package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
)

//go:embed assets/*.css assets/*.js assets/*.gz assets/*.svg
var assetFiles embed.FS

// asset is one static file, compressed.
type asset struct {
	contentType string
	gzipped     []byte
}

// assets serves static files under names that contain a digest of the content, so that browsers
// can cache them without an end.
type assets struct {
	byPath map[string]asset
	paths  map[string]string // by plain name
}

var contentTypes = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

func loadAssets() (*assets, error) {
	a := &assets{byPath: map[string]asset{}, paths: map[string]string{}}
	files, err := assetFiles.ReadDir("assets")
	if err != nil {
		return nil, fmt.Errorf("console assets: %w", err)
	}
	for _, f := range files {
		data, err := assetFiles.ReadFile("assets/" + f.Name())
		if err != nil {
			return nil, fmt.Errorf("console assets: %w", err)
		}
		name, compressed := strings.CutSuffix(f.Name(), ".gz")
		if !compressed {
			data = compress(data)
		}
		sum := sha256.Sum256(data)
		kind := path.Ext(name)
		at := "/console/assets/" + strings.TrimSuffix(name, kind) + "." + hex.EncodeToString(sum[:6]) + kind
		a.byPath[at], a.paths[name] = asset{contentTypes[kind], data}, at
	}
	return a, nil
}

func compress(data []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(data) // to memory
	_ = w.Close()
	return out.Bytes()
}

// ServeHTTP writes a file, compressed if the client accepts that.
func (a *assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := a.byPath[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		if plain, err := gzip.NewReader(bytes.NewReader(f.gzipped)); err == nil {
			_, _ = io.Copy(w, plain) //nolint:gosec // embedded files are trusted
		}
		return
	}
	h.Set("Content-Encoding", "gzip")
	h.Set("Content-Length", strconv.Itoa(len(f.gzipped)))
	_, _ = w.Write(f.gzipped)
}
