// Command image writes the container image of Spendhook, or the root file system of the image, from
// built binaries. It needs no container engine, no base image and no network.
//
//	image layout --binaries DIR --out DIR --version V --revision R --date D
//	image rootfs --arch ARCH (and the same flags)
//
// The binaries are DIR/linux-ARCH/spendhook. layout writes an OCI image layout for both
// architectures. rootfs writes a directory for one architecture, which the Dockerfile copies.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// release has the version data of an image.
type release struct {
	version, revision string
	date              time.Time
}

type options struct {
	binaries, out, license, arch string
	release
}

func run(args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return errors.New("the first argument must be layout or rootfs")
	}
	var o options
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&o.binaries, "binaries", "../bin", "directory with linux-ARCH/spendhook")
	flags.StringVar(&o.out, "out", "../bin/image", "directory to write to")
	flags.StringVar(&o.license, "license", "../LICENSE", "file of the license")
	flags.StringVar(&o.arch, "arch", "amd64", "architecture of a rootfs")
	flags.StringVar(&o.version, "version", "(devel)", "version of the binaries")
	flags.StringVar(&o.revision, "revision", "unknown", "revision of the binaries")
	date := flags.String("date", "1970-01-01T00:00:00Z", "date of the revision, which is the date of all files in the image")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	var err error
	if o.date, err = time.Parse(time.RFC3339, *date); err != nil {
		return err
	}
	switch args[0] {
	case "layout":
		return o.layout(stdout)
	case "rootfs":
		entries, _, err := o.rootFS(o.arch)
		if err != nil {
			return err
		}
		return writeDir(o.out, entries)
	default:
		return fmt.Errorf("the first argument must be layout or rootfs, not %s", args[0])
	}
}

// rootFS returns the files of the image for one architecture. The second value is the bill of materials
// alone, which is also one of the files.
func (o options) rootFS(arch string) ([]entry, []byte, error) {
	binary, err := os.ReadFile(filepath.Join(o.binaries, "linux-"+arch, "spendhook"))
	if err != nil {
		return nil, nil, err
	}
	license, err := os.ReadFile(o.license)
	if err != nil {
		return nil, nil, err
	}
	sbom, err := billOfMaterials(binary, o.release)
	if err != nil {
		return nil, nil, err
	}
	entries, err := imageFiles(binary, license, sbom)
	return entries, sbom, err
}

// layout writes the index of both architectures and prints its digest. It first removes the
// directory that it writes to.
func (o options) layout(stdout io.Writer) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	for _, arch := range []string{"amd64", "arm64"} {
		entries, sbom, err := o.rootFS(arch)
		if err != nil {
			return err
		}
		image, err := o.image(arch, entries)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: arch},
		}})
		if err := os.WriteFile(filepath.Join(o.out, "sbom."+arch+".cdx.json"), sbom, 0o644); err != nil {
			return err
		}
		if err := o.archive(arch, image); err != nil {
			return err
		}
	}
	index = mutate.Annotations(index, o.labels()).(v1.ImageIndex)
	p, err := layout.Write(filepath.Join(o.out, "oci"), empty.Index)
	if err != nil {
		return err
	}
	if err := p.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": o.version})); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, digest)
	return err
}

// archive writes the file that "docker load" reads, for one architecture.
func (o options) archive(arch string, image v1.Image) error {
	tag, err := name.NewTag("spendhook:latest")
	if err != nil {
		return err
	}
	return tarball.WriteToFile(filepath.Join(o.out, "docker."+arch+".tar"), tag, image)
}

// image returns the image of one architecture: one layer, and the settings of the daemon in a
// container.
func (o options) image(arch string, entries []entry) (v1.Image, error) {
	var layerTar bytes.Buffer
	if err := writeTar(&layerTar, entries, o.date); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layerTar.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer),
	)
	if err != nil {
		return nil, err
	}
	image, err := mutate.Append(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1),
		mutate.Addendum{Layer: layer, History: v1.History{Author: "spendhook", Created: v1.Time{Time: o.date}, CreatedBy: "make image"}})
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", arch, v1.Time{Time: o.date}
	file.Config = v1.Config{
		User:         fmt.Sprintf("%[1]d:%[1]d", user),
		Env:          []string{"PATH=/usr/bin", "SPENDHOOK_DATA_DIR=/data", "SPENDHOOK_LISTEN=:8443"},
		Entrypoint:   []string{"/usr/bin/spendhook"},
		Cmd:          []string{"serve"},
		WorkingDir:   "/data",
		Volumes:      map[string]struct{}{"/data": {}},
		ExposedPorts: map[string]struct{}{"8443/tcp": {}},
		StopSignal:   "SIGTERM",
		Labels:       o.labels(),
		Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD", "/usr/bin/spendhook", "healthcheck"}, Interval: 10 * time.Second, Timeout: 5 * time.Second, StartPeriod: 10 * time.Second,
		},
	}
	return mutate.ConfigFile(image, file)
}

func (o options) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "spendhook",
		"org.opencontainers.image.description": "Events in, signed webhooks out.",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     o.version,
		"org.opencontainers.image.revision":    o.revision,
		"org.opencontainers.image.created":     o.date.Format(time.RFC3339),
	}
}
