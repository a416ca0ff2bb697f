from outdo.cli import main

main()
