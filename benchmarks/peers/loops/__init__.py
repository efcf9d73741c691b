"""One file per peer. Each has the same functions, as far as the peer has such a thing.

    fit(work)               one pass over the data, and nothing else
    defaults(work)          the same with whatever the peer does if it is not told otherwise
    accuracy(work)          with the accuracy over the training batches, which is returned
    callbacks(work, count)  with so many callbacks that do nothing
    logging(work)           with the loss of each step written to a file
    checkpoints(work, n)    saves every n steps, and goes on from the newest save there is
    evaluate(work)          the mean loss over the data
    predict(work)           what the model returns for the data
    job(work)               trains, validates after each epoch, returns the accuracy held out

``ABSENT`` says by its name why one is missing, or why its saves cannot be gone on from ("resume");
``NO_JOB`` why one of the jobs is.
"""
