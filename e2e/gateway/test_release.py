async def test_helms_own_test_puts_pickers_to_the_whole_script_and_they_pass(cluster):
    said = cluster.put_to_the_test()

    assert said.count("Phase:          Succeeded") == 1
