# What belongs to the installed program besides its file. The program itself makes its completions and manual pages.

install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
set(cargo_argument "")
if(TANDEM_LLGUIDANCE)
  set(cargo_argument "\"${TANDEM_CARGO}\"")
endif()
set(destination "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}")
install(CODE "
  execute_process(COMMAND \"${CMAKE_SOURCE_DIR}/config/packaging/gather_licenses.py\"
    \"${destination}/${CMAKE_INSTALL_DOCDIR}/LICENSES.txt\" ${cargo_argument} COMMAND_ERROR_IS_FATAL ANY)"
  COMPONENT program)

foreach(place
    bash=bash-completion/completions/tandem
    zsh=zsh/vendor-completions/_tandem
    fish=fish/vendor_completions.d/tandem.fish)
  string(REGEX MATCH "^([a-z]+)=(.*)$" place ${place})
  set(file "${destination}/${CMAKE_INSTALL_DATADIR}/${CMAKE_MATCH_2}")
  install(CODE "
    set(file \"${file}\")
    cmake_path(GET file PARENT_PATH folder)
    file(MAKE_DIRECTORY \"\${folder}\")
    execute_process(COMMAND \"${CMAKE_BINARY_DIR}/tandem\" completion ${CMAKE_MATCH_1} OUTPUT_FILE \"\${file}\"
      COMMAND_ERROR_IS_FATAL ANY)"
    COMPONENT completions)
endforeach()

install(CODE "
  set(folder \"${destination}/${CMAKE_INSTALL_MANDIR}\")
  file(MAKE_DIRECTORY \"\${folder}\")
  execute_process(COMMAND \"${CMAKE_BINARY_DIR}/tandem\" man --dir \"\${folder}\" COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB pages \"\${folder}/man?/tandem*.?\")
  execute_process(COMMAND gzip --best --no-name --force \${pages} COMMAND_ERROR_IS_FATAL ANY)"
  COMPONENT man)

# The places are fixed, so this component is for packages: DESTDIR leads into the package.
install(FILES config/deploy/tandem.service DESTINATION /usr/lib/systemd/system COMPONENT service EXCLUDE_FROM_ALL)
install(FILES config/deploy/tandem.yaml DESTINATION /etc/tandem COMPONENT service EXCLUDE_FROM_ALL)
install(FILES config/packaging/deb/copyright config/deploy/README.md config/deploy/alerts.yml config/deploy/grafana.json
  config/deploy/prometheus.yml DESTINATION /usr/share/doc/tandem COMPONENT service EXCLUDE_FROM_ALL)
