package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"spendhook/deploy/internal/daemontest"
)

// build builds the binaries and the image of a copy of the repository, like 'make image'.
func build(t *testing.T, source, out string) (digest string) {
	t.Helper()
	binaries := t.TempDir()
	for _, arch := range []string{"amd64", "arm64"} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version=v1.2.3",
			"-o", filepath.Join(binaries, "linux-"+arch, "spendhook"), "./cmd/spendhook")
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", arch, err, text)
		}
	}
	var printed bytes.Buffer
	err := run([]string{
		"layout", "--binaries", binaries, "--out", out, "--license", filepath.Join(source, "LICENSE"),
		"--version", "v1.2.3", "--revision", "0123456789abcdef0123456789abcdef01234567", "--date", "2026-11-20T09:30:00Z",
	}, &printed)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(printed.String())
}

// copySource copies the files that git tracks.
func copySource(t *testing.T, from, to string) {
	t.Helper()
	script := fmt.Sprintf("cd '%s' && git ls-files -z | tar -c --null -T - | tar -x -C '%s'", from, to)
	if text, err := exec.CommandContext(t.Context(), "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("copy the repository: %v\n%s", err, text)
	}
}

// Builds of the same source in two directories give the same image. Its entry point runs as the user
// of the image in its root file system.
func TestImage(t *testing.T) {
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	copySource(t, source, copied)
	out := t.TempDir()
	first, second := build(t, source, out), build(t, copied, t.TempDir())
	if first != second || !strings.HasPrefix(first, "sha256:") {
		t.Errorf("two builds give different images: %s and %s", first, second)
	}

	images := openLayout(t, out)
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			checkImage(t, images[arch])
		})
	}
	t.Run("entry point", func(t *testing.T) {
		host, err := exec.CommandContext(t.Context(), "go", "env", "GOHOSTARCH").Output()
		if err != nil {
			t.Fatal(err)
		}
		runImage(t, images[strings.TrimSpace(string(host))])
	})
}

// openLayout reads the images of a layout, by architecture.
func openLayout(t *testing.T, dir string) map[string]v1.Image {
	t.Helper()
	outer, err := layout.ImageIndexFromPath(filepath.Join(dir, "oci"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := outer.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%v: %+v", err, manifest)
	}
	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	if manifest, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	images := map[string]v1.Image{}
	for _, m := range manifest.Manifests {
		if images[m.Platform.Architecture], err = index.Image(m.Digest); err != nil {
			t.Fatal(err)
		}
	}
	return images
}

func checkImage(t *testing.T, image v1.Image) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || config.Config.Labels["org.opencontainers.image.version"] != "v1.2.3" ||
		!config.Created.Equal(time.Date(2026, 11, 20, 9, 30, 0, 0, time.UTC)) {
		t.Errorf("%+v", config)
	}
	root := t.TempDir()
	unpack(t, image, root)
	var bom cyclonedx.BOM
	text, err := os.Open(filepath.Join(root, "usr/share/doc/spendhook/sbom.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	if err := cyclonedx.NewBOMDecoder(text, cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"std", "github.com/redis/go-redis/v9", "github.com/hibiken/asynq", "modernc.org/sqlite", "Mozilla certificate authorities"} {
		i := slices.IndexFunc(*bom.Components, func(c cyclonedx.Component) bool { return c.Name == name })
		if i < 0 || (*bom.Components)[i].Version == "" {
			t.Errorf("the bill of materials does not list %s", name)
		}
	}
	pool := x509.NewCertPool()
	certs, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	if err != nil || !pool.AppendCertsFromPEM(certs) || bytes.Count(certs, []byte("BEGIN CERTIFICATE")) < 100 {
		t.Errorf("the CA certificates: %v", err)
	}
	zone, err := os.ReadFile(filepath.Join(root, "usr/share/zoneinfo/Europe/Berlin"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := time.LoadLocationFromTZData("Europe/Berlin", zone); err != nil {
		t.Error(err)
	}
}

// unpack writes the only layer of the image below root. As root it sets the owners of the files.
func unpack(t *testing.T, image v1.Image, root string) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers: %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	archive := tar.NewReader(content)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.FileInfo().Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 || (h.Uid != 0 && h.Name != "data/") {
			t.Errorf("%s: mode %v, owner %d", h.Name, h.FileInfo().Mode(), h.Uid)
		}
		e := entry{path: strings.TrimSuffix(h.Name, "/"), mode: h.FileInfo().Mode(), owner: h.Uid}
		if e.content, err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
		if err := writeDir(root, []entry{e}); err != nil {
			t.Fatal(err)
		}
	}
}

// runImage runs the entry point like 'docker run … serve --quickstart', and sends requests to it.
func runImage(t *testing.T, image v1.Image) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a chroot needs root")
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	unpack(t, image, root)
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), config.Config.Entrypoint[0], append(config.Config.Entrypoint[1:], "serve", "--quickstart", "--log-format", "json")...)
	cmd.Env = append(config.Config.Env, "SPENDHOOK_LISTEN=127.0.0.1:0", "SPENDHOOK_ADMIN_LISTEN=127.0.0.1:0")
	cmd.Dir = config.Config.WorkingDir
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
	d := daemontest.Start(t, cmd)
	if !d.RunsAs(user) {
		t.Error("the daemon runs as another user")
	}
	d.RequiresToken(filepath.Join(root, "data", "quickstart"), "/api/v1/event-types")
	d.Stop(time.Minute)
}
