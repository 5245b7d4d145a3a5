package hostcopy

import (
	"path"
	"strings"
)

// AutoRun says of a relative path, with "/" between names of raw bytes, whether tools
// run what is there by themselves, and which do: a person who takes a folder out of a
// disk, and only opens it, may have run something. It looks at names alone, without
// regard to upper and lower case, as some hosts do, and is for files and links.
//
// The table is kept short: what acts when a folder is entered, opened, cloned or
// committed to, and what acts at login. What a person starts (make, pytest) is not in it.
func AutoRun(rel string) (why string, ok bool) {
	rel = "/" + strings.ToLower(strings.TrimSuffix(rel, "/"))
	for _, a := range autoRuns {
		if a.matches(rel) {
			return a.why, true
		}
	}
	return "", false
}

type autoRun struct {
	pattern string // names that follow each other; "dir/" is whatever is in it
	why     string
}

// matches says whether rel, which begins with "/" and is in lower case, ends in the
// pattern or, for one that ends in "/", leads through it.
func (a autoRun) matches(rel string) bool {
	if strings.HasSuffix(a.pattern, "/") {
		return strings.Contains(rel, "/"+a.pattern) && !strings.HasSuffix(rel, ".sample") // git's hooks, switched off
	}
	if strings.ContainsRune(a.pattern, '*') {
		ok, _ := path.Match(a.pattern, path.Base(rel))
		return ok
	}
	return strings.HasSuffix(rel, "/"+a.pattern)
}

const (
	shells  = "shells run it when they start, where it lies in a home"
	byGit   = "git runs it, or takes commands from it"
	byIDE   = "an editor that opens the folder takes tasks and commands from it"
	byAgent = "coding agents take commands and servers to start from it"
	atLogin = "desktops and systems start it at login or when it is opened"
	byNode  = "package managers of JavaScript take scripts to run from it"
)

var autoRuns = []autoRun{
	{".git/hooks/", byGit},                                                   // githooks(5)
	{".git/modules/", byGit}, {".gitconfig", byGit}, {".config/git/", byGit}, // git-config(1)
	{".git/config", byGit},                                                    // git-config(1): core.fsmonitor, core.sshCommand, core.hooksPath, alias.*
	{".git", "git follows it to a repository elsewhere"},                      // gitrepository-layout(5); a folder is not told
	{".husky/", byGit},                                                        // typicode.github.io/husky
	{".pre-commit-config.yaml", byGit},                                        // pre-commit.com
	{".github/workflows/", "GitHub runs it when it is pushed"},                // docs.github.com/actions
	{".gitlab-ci.yml", "GitLab runs it when it is pushed"},                    // docs.gitlab.com/ci/yaml
	{".envrc", "direnv runs it when a shell enters the folder, once allowed"}, // direnv(1)
	{".vscode/", byIDE},                                                       // code.visualstudio.com/docs/editor/workspace-trust
	{".idea/", byIDE},                                                         // jetbrains.com/help/idea/project-security.html
	{".devcontainer/", byIDE},                                                 // containers.dev/implementors/spec: initializeCommand runs on the host
	{".devcontainer.json", byIDE},
	{".claude/", byAgent}, // hooks in settings.json
	{".cursor/", byAgent},
	{".mcp.json", byAgent},
	{".bashrc", shells}, {".bash_profile", shells}, {".bash_login", shells}, {".bash_logout", shells}, {".profile", shells}, // bash(1)
	{".zshrc", shells}, {".zshenv", shells}, {".zprofile", shells}, {".zlogin", shells}, {".zlogout", shells}, {".config/fish/", shells}, // zsh(1)
	{".ssh/", "ssh takes commands and keys from it"}, // ssh_config(5), authorized_keys in sshd(8)
	{".npmrc", byNode}, {".yarnrc", byNode}, {".yarnrc.yml", byNode}, // script-shell, yarnPath
	{"*.desktop", atLogin},             // specifications.freedesktop.org/autostart-spec
	{".config/systemd/user/", atLogin}, // systemd.unit(5)
	{"library/launchagents/", atLogin}, // launchd.plist(5)
	{"autorun.inf", atLogin},           // learn.microsoft.com/windows/win32/shell/autorun-cmds
}
