# Lists and installs the Debian 12 packages of this project. ./serve and ./test source this file.

BUILD_PACKAGES=(
  g++ cmake ninja-build pkg-config
  libboost-dev libssl-dev nlohmann-json3-dev libspdlog-dev libyaml-cpp-dev libcli11-dev
  libpcre2-dev libicu-dev libsqlite3-dev libpq-dev libsimdjson-dev
  libsnappy-dev libzstd-dev zlib1g-dev
)
# llguidance needs Rust 1.87. Debian's security archive has it under these names; the plain packages are too old.
if ! minor=$(PATH="$PATH:$HOME/.cargo/bin" cargo --version 2>/dev/null | cut -d. -f2) ||
  [ -z "$minor" ] || [ "$minor" -lt 87 ]; then
  BUILD_PACKAGES+=(cargo-web rustc-web)
fi
# For config/packaging/make_release, besides BUILD_PACKAGES.
PACKAGE_PACKAGES=(binutils ca-certificates dpkg-dev python3)
# openssl makes the certificates of the end-to-end tests of TLS, chromium walks the console. zsh, fish and mandoc
# check completions and manual pages. debootstrap makes the roots of the packages' tests. MPI starts the ranks of
# training across processes.
TEST_PACKAGES=(
  libgtest-dev libeigen3-dev clang-format-14 clang-tidy-14 ccache curl openssl python3 python3-venv chromium
  zsh fish mandoc groff-base debootstrap libopenmpi-dev openmpi-bin "${PACKAGE_PACKAGES[@]}"
)

# For the build for arm64 and its tests.
TEST_PACKAGES+=(g++-aarch64-linux-gnu qemu-user)

# For the tests of replicas with one database. The tests run a server of their own.
TEST_PACKAGES+=(postgresql)

# For `./test --cluster`, besides TEST_PACKAGES: a router of replicas, a queue of jobs and ranks, and a shell that starts
# ranks. The tests run these daemons themselves.
CLUSTER_PACKAGES=(haproxy slurmctld slurmd slurm-client openssh-server)

# install_packages NAME…: installs the missing packages. Without root, prints the command and exits.
install_packages() {
  local missing=()
  local name
  for name in "$@"; do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" != installed ]; then
      missing+=("$name")
    fi
  done
  if [ ${#missing[@]} -eq 0 ]; then
    return
  fi
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    if sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    else
      echo "Missing Debian packages. Install them and run this again:" >&2
      echo "  sudo apt-get install -y ${missing[*]}" >&2
      exit 1
    fi
  fi
  echo "installing ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null
}
