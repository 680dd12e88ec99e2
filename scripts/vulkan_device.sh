#!/usr/bin/env bash
# Installs what the tests of the Vulkan backend run on where there is no GPU: Mesa's software device, the compiler of
# the kernels and the validation layers. Says what is missing where it may not install.
set -euo pipefail
packages=(libvulkan1 mesa-vulkan-drivers glslc vulkan-validationlayers)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "The tests of the Vulkan backend need: ${missing[*]}. Install them, as root: apt-get install ${missing[*]}" >&2
  exit 1
fi
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
