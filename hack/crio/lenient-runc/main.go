// Command lenient-runc runs runc for CRI-O on a machine where not every setting of a container can be applied, as
// containerd does by itself (tolerate_missing_hugetlb_controller, restrict_oom_score_adj): limits of huge pages are left
// out where there is no such cgroup, and a process's oom_score_adj is not lowered below this one's.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	hugetlb   = "/sys/fs/cgroup/hugetlb"
	unified   = "/sys/fs/cgroup/cgroup.controllers"
	ownScore  = "/proc/self/oom_score_adj"
	specName  = "config.json"
	bundleArg = "--bundle"
)

func main() {
	log.SetFlags(0)
	if bundle := bundle(os.Args); bundle != "" {
		if err := soften(filepath.Join(bundle, specName)); err != nil {
			log.Fatal(err)
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(syscall.Exec(runc, append([]string{runc}, os.Args[1:]...), os.Environ()))
}

// bundle returns the directory of the container that is to be created; "" for another command.
func bundle(arguments []string) string {
	for number, argument := range arguments[:len(arguments)-1] {
		if argument == bundleArg {
			return arguments[number+1]
		}
	}
	return ""
}

func soften(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var spec map[string]any
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber() // limits are larger than a float keeps
	if err := decoder.Decode(&spec); err != nil {
		return err
	}
	if !exists(hugetlb) && !exists(unified) {
		delete(object(object(spec, "linux"), "resources"), "hugepageLimits")
	}
	score, err := os.ReadFile(ownScore)
	if err != nil {
		return err
	}
	own, err := strconv.ParseInt(strings.TrimSpace(string(score)), 10, 64)
	if err != nil {
		return err
	}
	process := object(spec, "process")
	if given, _ := process["oomScoreAdj"].(json.Number); given != "" {
		if wanted, err := given.Int64(); err == nil && wanted < own {
			process["oomScoreAdj"] = own
		}
	}
	content, err = json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}

func object(of map[string]any, key string) map[string]any {
	found, _ := of[key].(map[string]any)
	return found
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
