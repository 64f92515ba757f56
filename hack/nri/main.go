// An NRI plugin for tests (hack/devnode/nri.py): it gives each container of each pod an environment variable and a limit
// of open files, as plugins do that inject devices or tune limits.
//
// nri SOCKET: it connects to containerd there, and ends with it.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

type plugin struct{}

func (plugin) Configure(context.Context, string, string, string) (stub.EventMask, error) {
	return api.ParseEventMask("CreateContainer")
}

func (plugin) CreateContainer(_ context.Context, _ *api.PodSandbox, _ *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	made := &api.ContainerAdjustment{}
	made.AddEnv("ADJUSTED_BY_NRI", "yes")
	made.AddRlimit("RLIMIT_NOFILE", 1234, 1234)
	return made, nil, nil
}

func (plugin) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	fmt.Println("registered")
	return nil, nil
}

func main() {
	made, err := stub.New(plugin{}, stub.WithPluginName("adjust"), stub.WithPluginIdx("00"), stub.WithSocketPath(os.Args[1]))
	if err == nil {
		err = made.Run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nri:", err)
		os.Exit(1)
	}
}
